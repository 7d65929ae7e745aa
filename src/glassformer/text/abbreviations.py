"""Words written with a full stop that ends no sentence, of the languages in Latin script that are met most."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# These introduce what follows. English; then German, French, Spanish, Italian and Portuguese.
NEVER_LAST = _words("""
    Mr Mrs Ms Messrs Mmes Dr Drs Prof Gen Sen Rep Gov Capt Cpt Lt Col Sgt Cpl Maj Cmdr Adm Rev Hon Pres Supt St Mt Ft
    vs e.g E.g i.e I.e cf Cf viz ca approx resp esp incl
    Hr Hrn Fr Frl Dipl-Ing bzw z.B Z.B d.h D.h u.a vgl Vgl ggf evtl Mme Mlle Mgr p.ex Sra Srta Dña Ud Uds Sig Dott Dra
""")
# Not before a number: No. 5, Fig. 2, Vol. IV.
NUMBERED = _words("no nos nr núm fig figs tab p pp pg pág vol vols ch chap sec sect art arts eq eqs ver op ex al")
# Not unless a word follows that starts sentences.
SELDOM_LAST = _words("""
    etc al Inc Ltd Co Corp Bros Jr Sr Esq Dept Univ Assn Ave Blvd Rd Hwy Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov
    Dec Mon Tue Tues Wed Thu Thur Thurs Fri Sat Sun usw bspw Str Jh S.p.A
""")
STARTERS = _words("""
    The A An This That These Those There Here He She It We They You I Then But And Or So If When While As At In On By
    For From After Before Although Because However His Her Its Our Their My Your What Who Why How Where No Yes Today Now
    Soon Der Die Das Ein Eine Er Sie Es Wir Und Aber Le La Les Un Une Il Elle Nous Et Mais El Los Las Ella Pero
    Lo Gli Ma
""")
# Languages that write an ordinal number with a full stop: der 3. Oktober.
ORDINALS = _words("cs da de et fi fo hr hu is lb lv nb nn no pl sk sl sr tr")
